import logging


def info(text):
    logging.getLogger('x')
    print(text)
