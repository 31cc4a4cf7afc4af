"""What figures show, as plain data: no plotting library is imported here."""
