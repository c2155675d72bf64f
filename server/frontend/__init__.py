"""Front ends: HTTP in processes of their own, or beside the engine. Nothing here imports torch."""
