"""The sandboxed processes of a referee, and the files that they produce."""
