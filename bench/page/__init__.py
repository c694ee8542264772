"""The page of `runner ui` in a headless Chromium."""
