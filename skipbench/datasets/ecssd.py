"""ECSSD: 1,000 images of complex scenes with a mask of the salient object (Shi et al. 2016)."""

from skipbench.datasets.common.layouts import Part, Saliency

SOURCE = Saliency(
    title="ECSSD",
    licence=(
        "images from the internet, no licence is stated, for research; "
        "www.cse.cuhk.edu.hk/leojia/projects/hsaliency/dataset.html"
    ),
    places=("ECSSD", "ecssd"),
    tree=(
        "  DIR/ECSSD/\n"
        "    images/                  0001.jpg …  (or img/)\n"
        "    ground_truth_mask/       0001.png …  (or gt/)"
    ),
    splits={
        "test": Part(1_000, "masks", official=(("images", "ground_truth_mask"),), named=("ecssd",)),
    },
)
