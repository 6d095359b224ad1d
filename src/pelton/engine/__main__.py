"""Entry point of the engine process: `python -m pelton.engine FD`."""

import gc
import importlib

if __name__ == "__main__":
    gc.disable()  # importing torch makes 200,000 objects, all to stay: collections among them take a tenth of the time
    importlib.import_module("pelton.engine.process").main()
