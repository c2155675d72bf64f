"""The corpus of tiny-prose: passages of manuals that Debian packages hold under permissive licences."""
