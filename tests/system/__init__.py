"""End-to-end tests: small scripts in their own processes, as users run them."""
