"""The routes of embeddings, scores and rankings."""

from pelton.http.pooling.embeddings import create_embedding
from pelton.http.pooling.requests import EmbeddingBody, RerankBody, ScoreBody
from pelton.http.pooling.responses import EmbeddingList, Ranking, ScoreList
from pelton.http.pooling.scores import create_ranking, create_score
from pelton.http.routes import JSON, Route

ROUTES = (
    Route(
        method="POST",
        path="/v1/embeddings",
        endpoint=create_embedding,
        summary="Vectors of texts",
        body=EmbeddingBody,
        answers={JSON: EmbeddingList},
    ),
    *(
        Route(
            method="POST",
            path=path,
            endpoint=create_score,
            summary="How close pairs of texts are",
            body=ScoreBody,
            answers={JSON: ScoreList},
        )
        for path in ("/v1/score", "/score")
    ),
    *(
        Route(
            method="POST",
            path=path,
            endpoint=create_ranking,
            summary="Documents by how close they are to a query",
            body=RerankBody,
            answers={JSON: Ranking},
        )
        for path in ("/v1/rerank", "/rerank", "/v2/rerank")
    ),
)
