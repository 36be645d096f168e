"""One module per noun; each route is a few lines around one use case."""
