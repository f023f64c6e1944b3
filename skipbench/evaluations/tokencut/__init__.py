"""Object discovery: TokenCut and LOST."""
