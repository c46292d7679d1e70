"""The laboratory: data sets, training recipes and suites. The library never imports it."""
