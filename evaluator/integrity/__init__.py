"""What kind of win a correct candidate is, and what really ran: explanations beside the verdict, which never decide it."""
