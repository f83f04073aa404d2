"""Measurements of clerk."""
