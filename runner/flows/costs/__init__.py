"""What runs cost. Start in `report`."""
