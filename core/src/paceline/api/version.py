"""The version of the contract. It moves on its own, apart from the versions of the packages."""

API_VERSION = "0.1.1"
