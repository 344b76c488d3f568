"""The referee's end of one open shape: writes contents, runs calls, reads outputs."""
