"""Documents become text: the text layer where a page has one, else OCR. `documents` is what the pipeline calls.

documents   what is kept of a document: its parts while it is read, then its text and the marker
reader      asks a child process for pages, within limits of time
child       the other side of that: everything native happens there, so that it may die alone
pdf, html   what a page says by itself, or an image of it
backends    who reads images
"""
