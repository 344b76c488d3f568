"""`make demo`: the whole workflow on this machine, using the service only through HTTP.

It starts `kernelwright serve` on a free port, POSTs a module to /optimize, follows the job, prints the results,
re-checks the bundle in a new process, submits a cheating candidate to show how it is caught, and stops the service.
The exit code is 0 only if all steps succeed.
"""
