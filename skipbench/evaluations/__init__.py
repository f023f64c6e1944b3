"""One file a protocol. They see arrays, never a model or an option. (Files with a leading
underscore serve the others.)"""
