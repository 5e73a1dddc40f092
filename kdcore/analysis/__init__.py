"""From predictions and measurements to statistics, tables and pictures."""
