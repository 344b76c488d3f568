"""What training runs wrote, as data: for the report of a run and for the dashboard, which may not know how runs are made."""
