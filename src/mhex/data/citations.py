"""What to cite for the data sets."""

from __future__ import annotations

CITATIONS = {
    "pets": "O. M. Parkhi, A. Vedaldi, A. Zisserman, C. V. Jawahar: Cats and Dogs. IEEE Conference on Computer Vision "
    "and Pattern Recognition, 2012.",
    "cifar": "A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, University of "
    "Toronto, 2009.",
    "blood": "A. Acevedo et al.: A dataset of microscopic peripheral blood cell images for development of automatic "
    "recognition systems. Data in Brief, 2020.",
    "medmnist": "J. Yang et al.: MedMNIST v2, a large-scale lightweight benchmark for 2D and 3D biomedical image "
    "classification. Scientific Data, 2023.",
    "imagenet": "O. Russakovsky et al.: ImageNet Large Scale Visual Recognition Challenge. International Journal of "
    "Computer Vision, 2015.",
    "real": "L. Beyer, O. J. Hénaff, A. Kolesnikov, X. Zhai, A. van den Oord: Are we done with ImageNet? arXiv "
    "2006.07159, 2020.",
    "imagenet_segmentation": "M. Guillaumin, D. Küttel, V. Ferrari: ImageNet Auto-Annotation with Segmentation "
    "Propagation. International Journal of Computer Vision, 2014.",
    "voc": "M. Everingham et al.: The Pascal Visual Object Classes Challenge: A Retrospective. International Journal "
    "of Computer Vision, 2015.",
    "camvid": "G. J. Brostow, J. Fauqueur, R. Cipolla: Semantic object classes in video: A high-definition ground "
    "truth database. Pattern Recognition Letters, 2009.",
    "lidc": "S. G. Armato III et al.: The Lung Image Database Consortium (LIDC) and Image Database Resource Initiative "
    "(IDRI). Medical Physics, 2011.",
    "ag_news": "X. Zhang, J. Zhao, Y. LeCun: Character-level Convolutional Networks for Text Classification. Advances "
    "in Neural Information Processing Systems, 2015.",
    "movies": "O. Zaidan, J. Eisner: Modeling Annotators. Empirical Methods in Natural Language Processing, 2008; J. "
    "DeYoung et al.: ERASER. Association for Computational Linguistics, 2020.",
}
