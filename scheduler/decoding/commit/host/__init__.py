"""The commit rules of the host, one file for each paper."""
