"""What tests share: a folder for each part of Holdfast, and what serves them all."""
