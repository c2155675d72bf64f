"""The command `asynclane`: one module for each subcommand."""
