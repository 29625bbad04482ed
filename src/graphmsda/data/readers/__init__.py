"""Ways a domain arrives, one file each: folders, archives, lists, tables, arrays."""
