"""The `octofold` command. Everything heavy is done by the library, through its public API."""
