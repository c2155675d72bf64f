"""Structured output: JSON schemas, regular expressions and choices as constraints for the scheduler."""
