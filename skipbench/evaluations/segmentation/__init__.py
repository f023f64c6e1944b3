"""What probe, knn and cluster share."""
