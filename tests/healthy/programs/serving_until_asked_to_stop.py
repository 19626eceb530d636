"""A server after training: rank 0 answers a client of its own, the others wait for the end."""

import socket
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


def answer(server):
    connection, _ = server.accept()
    with connection:
        connection.sendall(connection.recv(16))


if rank == 0:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        time.sleep(2)
        with socket.create_connection(server.getsockname()) as client:
            client.sendall(b"ping")
            assert client.recv(16) == b"ping"
        thread.join()
dist.barrier()

dist.destroy_process_group()
