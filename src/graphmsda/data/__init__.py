"""Ways of getting a domain: folders, arrays and the embedded demo."""
