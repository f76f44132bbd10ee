"""Tables: scikit-learn estimators, files, comparisons."""

from bayeslearn.tabular.classifier import BayesianNNClassifier
from bayeslearn.tabular.persistence import load
from bayeslearn.tabular.regressor import BayesianNNRegressor

__all__ = ["BayesianNNClassifier", "BayesianNNRegressor", "load"]
