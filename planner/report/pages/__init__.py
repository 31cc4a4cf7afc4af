"""Self-contained HTML pages: figures and reports through Jinja2 templates."""
