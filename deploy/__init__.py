"""The Python part of deployment. Beside it are files for Compose, Kubernetes, proxies and monitoring."""
