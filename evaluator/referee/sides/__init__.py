"""The referee's ends of one open shape: contents in, calls, outputs out."""
