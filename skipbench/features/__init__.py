"""From images to features: which blocks, in which batches, streamed or stored on disk."""
