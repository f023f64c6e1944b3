"""DUT-OMRON: 5,168 images with masks of salient objects (Yang et al. 2013)."""

from skipbench.datasets.common.layouts import Part, Saliency

SOURCE = Saliency(
    title="DUT-OMRON",
    also="dut-omron dut omron",
    licence="no licence is stated, for research; saliencydetection.net/dut-omron",
    places=("DUT-OMRON", "DUT_OMRON", "DUTOMRON", "dut-omron", "dutomron", "DUTS-OMRON"),
    tree=(
        "  DIR/DUT-OMRON/\n"
        "    DUT-OMRON-image/         im005.jpg …  (or img/)\n"
        "    pixelwiseGT-new-PNG/     im005.png …  (or gt/)"
    ),
    splits={
        "test": Part(
            5_168,
            "masks",
            official=(
                ("DUT-OMRON-image", "pixelwiseGT-new-PNG"),
                # unpacked into a folder with the name of each archive
                (
                    "DUT-OMRON-image/DUT-OMRON-image",
                    "DUT-OMRON-gt-pixelwise.zip/pixelwiseGT-new-PNG",
                ),
            ),
            named=("dutomron", "dutsomron"),
        ),
    },
)
