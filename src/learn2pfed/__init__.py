"""Personalised federated learning in which every parameter learns how far it follows the others."""

from importlib.metadata import version

__version__ = version("learn2pfed")

from learn2pfed.estimators import Learn2pFedClassifier, Learn2pFedRegressor
from learn2pfed.storage import load_model, save_model

__all__ = ["Learn2pFedClassifier", "Learn2pFedRegressor", "__version__", "load_model", "save_model"]
