"""The collections of MedMNIST v2 in two dimensions and the names of their classes."""

from __future__ import annotations

from mhex.data.blood import BLOOD_CLASSES

SIZES = (28, 64, 128, 224)
_ORGANS = (
    *("bladder", "femur left", "femur right", "heart", "kidney left", "kidney right", "liver", "lung left"),
    *("lung right", "pancreas", "spleen"),
)
MEDMNIST_CLASSES: dict[str, tuple[str, ...]] = {
    "pathmnist": (
        *("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa"),
        *("cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
    ),
    "chestmnist": (
        *("atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia", "pneumothorax"),
        *("consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia"),
    ),
    "dermamnist": (
        *("actinic keratoses and intraepithelial carcinoma", "basal cell carcinoma", "benign keratosis-like lesions"),
        *("dermatofibroma", "melanoma", "melanocytic nevi", "vascular lesions"),
    ),
    "octmnist": ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    "pneumoniamnist": ("normal", "pneumonia"),
    "retinamnist": ("0", "1", "2", "3", "4"),
    "breastmnist": ("malignant", "normal, benign"),
    "bloodmnist": BLOOD_CLASSES,
    "tissuemnist": (
        *("collecting duct, connecting tubule", "distal convoluted tubule", "glomerular endothelial cells"),
        *("interstitial endothelial cells", "leukocytes", "podocytes", "proximal tubule segments"),
        "thick ascending limb",
    ),
    "organamnist": _ORGANS,
    "organcmnist": _ORGANS,
    "organsmnist": _ORGANS,
}
SEVERAL_CLASSES = ("chestmnist",)  # an image may have none or several of its classes
ORDERED_CLASSES = ("retinamnist",)  # grades of one disease, so that 1 is nearer to 2 than to 4
TITLES = {
    "pathmnist": "PathMNIST",
    "chestmnist": "ChestMNIST",
    "dermamnist": "DermaMNIST",
    "octmnist": "OCTMNIST",
    "pneumoniamnist": "PneumoniaMNIST",
    "retinamnist": "RetinaMNIST",
    "breastmnist": "BreastMNIST",
    "bloodmnist": "BloodMNIST",
    "tissuemnist": "TissueMNIST",
    "organamnist": "OrganAMNIST",
    "organcmnist": "OrganCMNIST",
    "organsmnist": "OrganSMNIST",
}
