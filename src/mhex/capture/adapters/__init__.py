"""How a model is read: known families, and a generic route for all others."""
