"""Pictures of principal components."""
