"""DUTS: images of ImageNet and SUN with masks of salient objects (Wang et al. 2017).

Unsupervised methods are evaluated on DUTS-TE, the split `test`; DUTS-TR is `train`.
"""

from skipbench.datasets.common.layouts import Part, Saliency

SOURCE = Saliency(
    title="DUTS",
    also="duts-te",
    licence="all rights reserved by its authors, for research; saliencydetection.net/duts",
    places=("DUTS", "duts", "DUTS_Test"),
    tree=(
        "  DIR/DUTS/\n"
        "    DUTS-TE/DUTS-TE-Image/   ILSVRC2012_test_00000003.jpg …  (or DUTS-TE/img/)\n"
        "    DUTS-TE/DUTS-TE-Mask/    ILSVRC2012_test_00000003.png …  (or DUTS-TE/gt/)\n"
        "    DUTS-TR/DUTS-TR-Image/   ILSVRC2012_test_00000004.jpg …\n"
        "    DUTS-TR/DUTS-TR-Mask/    ILSVRC2012_test_00000004.png …"
    ),
    splits={
        "test": Part(
            5_019,
            "masks",
            official=(
                ("DUTS-TE/DUTS-TE-Image", "DUTS-TE/DUTS-TE-Mask"),
                ("DUTS-TE-Image", "DUTS-TE-Mask"),
            ),
            named=("duts", "dutste", "dutstest"),
            below=("DUTS-TE",),
        ),
        "train": Part(
            10_553,
            "masks",
            official=(
                ("DUTS-TR/DUTS-TR-Image", "DUTS-TR/DUTS-TR-Mask"),
                ("DUTS-TR-Image", "DUTS-TR-Mask"),
            ),
            named=("dutstr", "dutstrain"),
            below=("DUTS-TR",),
        ),
    },
)
