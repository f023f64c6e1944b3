"""From images to features: which blocks, in which batches, streamed or kept on disk."""
