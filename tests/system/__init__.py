"""End-to-end tests: small scripts in processes of their own, as users run them."""
