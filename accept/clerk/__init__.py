"""The fifteen checks of clerk: real commands in real processes, real documents, real OCR, real databases."""
