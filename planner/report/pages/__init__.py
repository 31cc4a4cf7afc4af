"""Self-contained HTML pages, made from charts and reports with Jinja2 templates."""
