"""Request bodies, response shapes and the OpenAPI document."""
