"""VM sizes (`machines.csv`), prices (`prices.csv`), and what runs cost. Start in `machines`."""
