"""Pictures and figures. matplotlib is imported only where a figure is drawn."""
