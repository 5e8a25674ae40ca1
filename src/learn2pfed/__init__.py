"""Personalised federated learning in which every parameter learns how far it follows the others."""

from importlib.metadata import version

__version__ = version("learn2pfed")
